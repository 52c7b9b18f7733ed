"""Opening image files that nobody vouches for."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skewconv.errors import SkewconvError
from skewconv.extras import optional
from skewconv.train.data.errors import DataError


@contextmanager
def opened(source: Path | bytes, formats: Sequence[str], name: str) -> Iterator[Any]:
    """A Pillow image of one of the formats; whatever goes wrong while it is open becomes a DataError."""
    pil = optional("PIL.Image", "Pillow")
    pil.init()  # registers every format; by itself Pillow does so only once it has failed
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pil.DecompressionBombWarning)
            with pil.open(file, formats=list(formats)) as image:
                yield image
    except SkewconvError:
        raise
    except (pil.DecompressionBombError, pil.DecompressionBombWarning) as error:
        raise DataError(f"{name} has too many pixels ({error}): make it smaller, or remove it") from error
    except Exception as error:  # Pillow's decoders raise many kinds on damaged files
        raise DataError(f"{name} cannot be read as an image ({error}): replace or remove it") from error
