"""Fixtures that several test files share."""

import gc
import signal
from pathlib import Path

import pytest
from accelerate.state import GradientState

from ranks import soon_left_behind

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job is born deaf to Ctrl-C, and its children too: tests of Ctrl-C would fail for that alone
    signal.signal(signal.SIGINT, signal.default_int_handler)

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup's children are deaf to hang-ups
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser):
    parser.addoption("--proof", action="store_true", help="prove in full: as often and as long as the issues say")


@pytest.fixture(scope="session")
def full(pytestconfig):
    """`full(3, 50)` is 3, and 50 with --proof."""
    return lambda small, large: large if pytestconfig.getoption("--proof") else small


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real COCO images, awkward images and odd tars; the test is skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real images are not beside this checkout ({SHARED_DATA.parent.name}/{SHARED_DATA.name})")
    return SHARED_DATA


@pytest.fixture
def nothing_left():
    """The test leaves no thread, no process and no loader registered with accelerate, though it waits for none."""
    yield
    gc.collect()
    assert soon_left_behind() == []
    assert not GradientState().in_dataloader


@pytest.fixture
def asking(capsys):
    """`asking(main)` asks a program in this process: arguments in; exit status, lines of output and errors out."""

    def of(main):
        def asked(*arguments):
            try:
                status = main([str(argument) for argument in arguments])
            except SystemExit as exc:
                status = exc.code
            shown = capsys.readouterr()
            return status, shown.out.splitlines(), shown.err

        return asked

    return of
