"""Iterations that a script still holds at its end are closed before the interpreter takes itself apart."""

import gc
import weakref

from pictures import in_a_new_process
from stream.live import keep_track


def numbers():
    yield from range(3)


def test_who_is_tracked_is_not_kept_alive():
    iteration = numbers()
    keep_track(iteration)
    seen = weakref.ref(iteration)
    del iteration
    gc.collect()
    assert seen() is None


def test_an_iteration_that_is_held_at_exit_is_closed_while_modules_still_work():
    said = in_a_new_process("""
        import sys
        from stream.live import keep_track

        def numbers():
            try:
                yield 1
            finally:
                print("closed", sys.meta_path is not None)

        held = numbers()
        next(held)
        keep_track(held)
        print("end of script")
    """)
    assert said == "end of script\nclosed True\n"


def test_an_iteration_that_another_thread_is_in_does_not_spoil_the_exit():
    said = in_a_new_process("""
        import threading
        from stream.live import keep_track

        entered = threading.Event()

        def numbers():
            entered.set()
            threading.Event().wait()
            yield 1

        held = numbers()
        keep_track(held)
        threading.Thread(target=lambda: next(held), daemon=True).start()
        entered.wait()
        print("end of script")
    """)
    assert said == "end of script\n"
