"""Image conversion on the device: upside-down BGR bytes with padded rows to the net's tensors, and back."""

from __future__ import annotations

import numpy as np
from digits import Array, count_right, load_images, load_model

import gpuexec as gx

# From 64 x 64 pixels of 0 to 240, blue first and the last row on top, to 8 x 8 numbers of 0 to 16.
TRANSFORM = gx.ImageTransform(
    size=(8, 8), pixels="BGR", swizzle="G", scale=1 / 15, origin="bottom_left", antialias=True
)


def take_photos(images: Array) -> Array:
    """Return the pictures as a camera might: [n, 64, 64, 3] of uint8, upside down, in rows of 80 pixels."""
    grey = np.repeat(np.repeat(15 * images[:, 0].astype(np.uint8), 8, axis=1), 8, axis=2)
    photos: Array = np.zeros((len(images), 64, 80, 3), np.uint8)[:, :, :64]
    photos[...] = grey[:, ::-1, :, np.newaxis]
    return photos


def main() -> None:
    """Read the digits off the photos, one after the other and all at once, and show one as the net saw it."""
    images, labels = load_images(360)
    photos = take_photos(images)
    with gx.Worker(load_model()) as worker:
        # One tensor for all frames: written on the device, while the run before it may still be under way.
        frame = gx.to_tensor(photos[0], TRANSFORM)
        requests = []
        for photo in photos:
            gx.to_tensor(photo, TRANSFORM, out=frame)
            worker.schedule(frame)
            requests.append(worker.peek_output().readback_request())
        print("frame by frame:", count_right(np.concatenate([request.result() for request in requests]), labels))

        worker.schedule(gx.to_tensor(photos, TRANSFORM))
        print("in a batch:", count_right(worker.peek_output().readback_and_clone(), labels))

    seen = gx.to_image(frame, gx.ImageTransform(scale=1 / 15)).readback_and_clone()
    for row in seen[..., 0]:
        print("".join(" .:-=+*%@"[value // 30] for value in row))


if __name__ == "__main__":
    main()
