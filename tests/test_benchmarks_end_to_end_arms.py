import gc
import io
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark_cases import make_images
from end_to_end_arms import Nothing, collate, loader, pillow_decoder, pipeline, same_decoder
from end_to_end_plan import Plan
from stream.resize import ResizeSpec


def plan_of(data):
    return Plan(
        data=data,
        ranks=1,
        rows=4,
        side=32,
        arms=[],
        rounds=1,
        warmup_steps=0,
        steps=1,
        ceiling_s=0.1,
        sleeps=None,
    )


def sample():
    ramp = np.broadcast_to(np.arange(0, 192, 2, dtype=np.uint8)[None, :, None], (64, 96, 3))
    encoded = io.BytesIO()
    Image.fromarray(ramp).save(encoded, "JPEG", quality=95)
    return {"__key__": "ramp", "jpg": encoded.getvalue()}


def test_both_decoders_make_the_same_picture():
    spec = ResizeSpec(32, 32)
    ours, theirs = same_decoder(sample(), spec=spec), pillow_decoder(sample(), spec=spec)
    assert ours.shape == theirs.shape == (32, 32, 3)
    assert ours.dtype == theirs.dtype == torch.uint8
    assert (ours.int() - theirs.int()).abs().max() <= 3


def test_a_batch_is_contiguous_and_floats_lie_between_0_and_1():
    images = [torch.full((2, 5, 3), value, dtype=torch.uint8) for value in (0, 255)]
    for to_float, dtype, high in ((False, torch.uint8, 255), (True, torch.float32, 1)):
        image = collate(images, to_float=to_float)["image"]
        assert image.shape == (2, 3, 2, 5)
        assert image.dtype == dtype
        assert image.is_contiguous()
        assert (image[0].max(), image[1].min()) == (0, high)


@pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedReader name=.*tar:ResourceWarning")
@pytest.mark.parametrize("to_float", [False, True])
def test_a_webdataset_pipeline_gives_batches_without_end(tmp_path, to_float):
    plan = plan_of(make_images(tmp_path / "packed", 10))
    found = list(islice(pipeline(plan, same_decoder, to_float=to_float), 9))
    assert {tuple(batch["image"].shape) for batch in found} == {(4, 3, 32, 32)}
    gc.collect()  # webdataset lets garbage close its tars: here, where their warning is known


def test_a_rank_that_only_receives_reads_nothing():
    assert list(Nothing()) == []


def test_the_ceiling_is_no_way_from_shards_to_batches(tmp_path):
    with pytest.raises(ValueError, match="ceiling is no way"):
        loader("ceiling", plan_of(str(tmp_path)), None)
