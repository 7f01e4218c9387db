import os

from machine import cores, describe_machine


def test_the_machine_is_told_in_full():
    told = describe_machine()
    assert told.cores == cores() == len(os.sched_getaffinity(0))
    assert told.cpu
    assert told.memory_gib > 0.5
    assert type(told.torch) is str
    assert told.accelerator.endswith("accelerator") or " x " in told.accelerator
