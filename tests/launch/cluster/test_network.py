"""windrow.launch.cluster.network: what is asked of the kernel, deadlines, missing programs."""

import pytest

from windrow.comm.errors import ClusterError
from windrow.launch.cluster import network
from windrow.launch.cluster.network import (
    SetUp,
    build_network,
    host_address,
    interface_commands,
    make_options,
    require_tools,
)


class Recorder(SetUp):
    """Runs nothing and keeps what it was to run."""

    def __init__(self):
        super().__init__(1)
        self.seen = []

    def run(self, *command, text="", check=True, environment=None):
        self.seen.append((command, text))


def test_every_host_is_connected_and_every_limited_link_is_shaped_at_both_ends(monkeypatch):
    monkeypatch.setattr(network, "require_tools", lambda: None)
    recorder = Recorder()
    build_network(make_options(3, "1gbit,unlimited,10gbit"), recorder)
    lines = dict(recorder.seen)
    made = lines["ip", "-batch", "-"]
    for number, host in enumerate(("host0-1gbit", "host1-unlimited", "host2-10gbit")):
        assert f"netns add {host}\nlink add port{number} type veth peer name eth0 netns {host}\n" in made
        assert f"link set port{number} master switch up" in made
        assert f"addr add {host_address(number)}/24 dev eth0" in lines["ip", "-netns", host, "-batch", "-"]
    assert ("tc", "-netns", "host1-unlimited", "-batch", "-") not in lines
    ports = lines["tc", "-batch", "-"]
    assert "port1 " not in ports
    assert "match ip src 10.77.0.2/32" in ports
    own = lines["tc", "-netns", "host2-10gbit", "-batch", "-"]
    assert "rate 10000000000bit" in own
    assert "match ip dst 10.77.0.1/32" in own
    assert "10.77.0.3" not in own


def test_packets_fit_into_buckets():
    lines = interface_commands(make_options(2, "1gbit,unlimited"))
    assert "link set port0 master switch up gso_max_size 16384" in lines
    assert "link set port1 master switch up" in lines


def test_a_missing_program_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(
        network, "find_program", lambda name: None if name in {"tc", "ip"} else f"/bin/{name}"
    )
    with pytest.raises(ClusterError, match=r"ip and tc not found: install iproute2 .*What works without"):
        require_tools()
    with pytest.raises(ClusterError, match="tc is not on the PATH"):
        SetUp(1).run("tc")


def test_a_program_that_fails_is_quoted():
    with pytest.raises(ClusterError, match="sh -c echo oh no >&2; exit 1 failed: oh no"):
        SetUp(20).run("sh", "-c", "echo oh no >&2; exit 1")
    done = SetUp(20).run(
        "sh", "-c", 'cat; echo "$A"; exit 4', text="in ", check=False, environment={"A": "b"}
    )
    assert (done.stdout, done.returncode) == ("in b\n", 4)


def test_a_program_that_hangs_is_named():
    set_up = SetUp(0.3)
    with pytest.raises(ClusterError, match=r"longer than 0\.3 s; it hung in: sleep 60"):
        set_up.run("sleep", "60")
    # One deadline for all of them together.
    with pytest.raises(ClusterError, match="sleep 61"):
        set_up.run("sleep", "61")


def test_programs_for_administration_are_found_without_a_path_to_them(monkeypatch, tmp_path):
    (tmp_path / "tc").write_text("#!/bin/sh\n")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(network, "ADMINISTRATION_PATH", f"/nowhere-either:{tmp_path}")
    assert network.find_program("tc") == str(tmp_path / "tc")
    assert network.find_program("no-such-program") is None
