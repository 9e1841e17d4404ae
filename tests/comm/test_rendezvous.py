"""A free port, and a meeting that ends its process; torchrun's environment is tested in test_torch_world."""

import socket
import subprocess
import sys

from windrow.comm.launcher import free_port


def test_a_free_port_can_be_bound():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port("127.0.0.1")))


def test_aborting_ends_the_process_with_its_status():
    source = (
        "from windrow.comm.launcher import Rendezvous\n"
        "print('before', flush=False)\n"
        "Rendezvous(rank=0, size=1, host='h', port=1).abort(5)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stdout == "before\n"
