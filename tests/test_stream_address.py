"""stream/address.py: where the other hosts reach this one, asked of the job's own process group."""

import socket

import pytest
import torch.distributed

from stream.address import own_address


@pytest.fixture
def group():
    def make(**options):
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, **options)

    yield make
    torch.distributed.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_master_on_this_host_is_reached_over_loopback(group):
    group(init_method=f"tcp://127.0.0.1:{free_port()}")
    assert own_address() == "127.0.0.1"


def test_a_job_that_met_through_a_file_has_the_address_of_this_hosts_name(group, tmp_path, monkeypatch):
    group(init_method=f"file://{tmp_path}/meeting")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert own_address() == "127.0.0.1"
