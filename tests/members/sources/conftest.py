"""The demo models' files, for the tests of what reads them."""

import pytest

from ensemble_decode.members import sources
from ensemble_decode.members.sources import gguf_convert


@pytest.fixture(scope="package")
def demo_files():
    """Per demo model, its GGUF file and its converted folder; fetched and converted first where they are missing."""
    files = {}
    for name, model in sources.DEMO_MODELS.items():
        path = sources.fetch_demo(name)
        files[name] = (path, gguf_convert.converted_folder(path, name, model.sha256))
    return files
