"""The HTML page of a record."""

import base64
import re

from ensemble_decode.bench import page, plots


def test_the_page_is_self_contained(record, tmp_path):
    page.write_html(record, tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(images) == len(plots.PLOTS) == text.count("<img")
    assert all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "only &lt;one&gt; row" in text
    assert "label of dictionary" in text
