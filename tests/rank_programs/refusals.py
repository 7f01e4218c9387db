"""Make loaders that a job of several processes must refuse, and tell in which words it does."""

from rank_job import accelerator_for, run

from packed import SIZE
from stream.loader import StreamLoader
from stream.options import StreamOptions


def main(config, _):
    url = config["url"]
    return {
        "without accelerator": words(lambda: iter(loader_of(url))),
        "not prepared": [words(lambda mode=mode: iter(loader_of(url, mode))) for mode in ("dispatch", "shard", None)],
        "batch size": [words(lambda mode=mode: loader_of(url, mode, batch_size=9)) for mode in ("dispatch", "shard")],
        "uneven": words(lambda: loader_of(url, "dispatch", even_batches=False, transport="stock")),
        "uneven by default": words(lambda: loader_of(url, None, even_batches=False, transport="stock")),
        "described": loader_of(url, None).describe(),
    }


def loader_of(url, mode="alone", *, batch_size=12, even_batches=True, transport="ours"):
    accelerator = None
    if mode != "alone":
        accelerator = accelerator_for(mode, split_batches=mode is not None, even_batches=even_batches)
    return StreamLoader(
        url, accelerator=accelerator, batch_size=batch_size, image_size=SIZE, options=StreamOptions(transport=transport)
    )


def words(act):
    try:
        act()
    except Exception as exc:  # noqa: BLE001 - any error is what is looked at
        return f"{type(exc).__name__}: {exc}"
    return None


run(main)
