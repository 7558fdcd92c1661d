"""Write digits.npz anew, byte for byte, from the copy of the data set that scikit-learn carries.

python calibration_data/build_digits.py            # needs scikit-learn, which NNCF brings
python calibration_data/build_digits.py --check    # compares only; exit code 1 where they differ
"""

from __future__ import annotations

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent / "digits.npz"
PER_CLASS = {"evaluation": 50, "validation": 20, "calibration": 26}  # training takes the rest


def samples() -> dict[str, np.ndarray]:
    """The arrays of the file: images [n, 8, 8] 0..255, labels 0..9, ids and split names.

    The split is stratified and hangs on the content alone: the images of a class are sorted by
    their SHA-256 and dealt out in that order, so neither a library's random numbers nor the order
    of the source matter. Of identical images the first is kept.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    image = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    marks = [hashlib.sha256(pixels.tobytes()).hexdigest() for pixels in image]
    kept = [row for row in range(len(image)) if marks[row] not in marks[:row]]
    split = dict.fromkeys(kept, "training")
    for label in range(10):
        rows = sorted((row for row in kept if digits.target[row] == label), key=marks.__getitem__)
        for name, count in PER_CLASS.items():
            split.update(dict.fromkeys(rows[:count], name))
            rows = rows[count:]
    return {
        "image": image[kept],
        "target": digits.target[kept].astype(np.int64),
        "id": np.array([f"digit-{row:04d}" for row in kept]),
        "split": np.array([split[row] for row in kept]),
    }


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as an npz, stored and undated, so that the same arrays give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return out.getvalue()


def main() -> None:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    arrays = samples()
    data = packed(arrays)
    if check and data != TARGET.read_bytes():
        raise SystemExit(f"{TARGET.name} differs from what this script makes")
    if not check:
        TARGET.write_bytes(data)
    names, counts = np.unique(arrays["split"], return_counts=True)
    parts = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    print(f"{TARGET.name}: {len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}\n{parts}")


if __name__ == "__main__":
    main()
