"""The report: one HTML page from run folders and benchmark results; `page.build_page` makes it."""
