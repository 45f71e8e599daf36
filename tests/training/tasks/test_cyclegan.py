"""What ``cyclegan`` trains on; what it learns is in the test of the zoo."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from modelyard.training import InputRequest
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import CycleganTask


def drawings_of(images: npt.NDArray[np.uint8], data: FashionMnist) -> npt.NDArray[np.uint8]:
    task = CycleganTask(data=replace(data, test_images=images))
    drawings = task.verification_data(len(images)).inputs["to_garment"]["drawing"]
    return np.rint(np.asarray(drawings)[..., 0] * 255).astype(np.uint8)


def test_edge_maps_are_white_but_where_brightness_changes(subset: FashionMnist) -> None:
    image = np.zeros((1, 5, 6), np.uint8)
    image[:, :, 3:] = 100
    row = 255 - drawings_of(image, subset)[0, 2].astype(int)
    # Sobel's gradient is 4 * 100 beside the edge, and a quarter of it is drawn; the last column has black beside it.
    assert row.tolist() == [0, 0, 100, 100, 0, 100]


def test_cyclegan_s_domains_share_no_garment(subset: FashionMnist) -> None:
    task = CycleganTask(data=subset)
    garments, drawings = next(iter(task.train_dataset(InputRequest(batch_size=1000))))
    drawn = {image.tobytes() for image in (drawings.numpy()[..., 0] * 255).round().astype(np.uint8)}
    seen = drawings_of((garments.numpy()[..., 0] * 255).round().astype(np.uint8), subset)
    assert len(drawn) > 900
    assert not drawn & {image.tobytes() for image in seen}
