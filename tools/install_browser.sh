#!/usr/bin/env bash
# Put the browser there that tests of pages are looked at with: Debian's chromium and its driver. Never fails, since
# those tests are skipped, with the reason, where there is none.
set -uo pipefail

if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then
    exit 0
fi
if ! command -v apt-get > /dev/null; then
    echo "windrow: no chromium here, and no apt-get to install it: tests of pages are skipped. Install chromium and" >&2
    echo "chromedriver in this system's way to run them." >&2
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "windrow: no chromium here: tests of pages are skipped. To run them: sudo tools/install_browser.sh" >&2
    exit 0
fi
install() {
    DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install --yes --quiet --no-install-recommends chromium chromium-driver
}
# The lists of a fresh image are empty, those of an old one name packages that are gone.
if ! { install || { timeout 120 apt-get update --quiet && install; }; } > /dev/null 2>&1; then
    echo "windrow: apt-get could not install chromium and chromium-driver: tests of pages are skipped." >&2
fi
exit 0
