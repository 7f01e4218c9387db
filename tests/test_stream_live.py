"""Iterations that a script still holds at its end are closed before the interpreter takes itself apart."""

import gc
import threading
import weakref
import zlib

from pictures import in_a_new_process
from stream.live import keep_track, others_sleep


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


def test_a_thread_that_works_in_native_code_is_seen_until_it_has_ended():
    data, begun, stop = bytes(1 << 22), threading.Event(), threading.Event()

    def work():
        while not stop.is_set():
            begun.set()
            zlib.compress(data)  # without the interpreter's lock

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    begun.wait()
    seen = {others_sleep() for _ in range(200)}
    stop.set()
    worker.join()
    assert False in seen
    assert soon(others_sleep)


def soon(condition):
    """Tell whether a condition comes true: threads of other tests' libraries may still be on their way to sleep."""
    return any(condition() or threading.Event().wait(0.01) for _ in range(2000))


def test_a_process_that_is_a_rank_waits_for_threads_that_work_before_it_ends():
    said = in_a_new_process("""
        import threading, zlib
        from stream.live import expect_collectives

        begun = threading.Event()

        def work():
            begun.set()
            zlib.compress(bytes(1 << 25), 9)
            print("done")

        expect_collectives(2)
        threading.Thread(target=work, daemon=True).start()
        begun.wait()
        print("end of script")
    """)
    assert said == "end of script\ndone\n"
