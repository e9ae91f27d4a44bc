"""A drawing as PNG, painted at twice its size so that letters are sharp."""

from __future__ import annotations

import io

from floodmark.timeline.picture.drawing import PAPER, Drawing, Words

_SCALE = 2


def render(drawing: Drawing) -> bytes:
    """The bytes of a PNG file."""
    from PIL import Image, ImageDraw, ImageFont  # late: most commands paint nothing

    image = Image.new("RGB", (_SCALE * drawing.width, _SCALE * drawing.height), PAPER)
    brush = ImageDraw.Draw(image)
    sizes = {shape.size for shape in drawing.shapes if isinstance(shape, Words)}
    fonts = {size: ImageFont.load_default(_SCALE * size) for size in sizes}
    for shape in drawing.shapes:
        x, y = _SCALE * shape.x, _SCALE * shape.y
        if isinstance(shape, Words):
            brush.text((x, y), shape.text, fill=shape.colour, font=fonts[shape.size])
        else:
            corner = (x + _SCALE * shape.width - 1, y + _SCALE * shape.height - 1)
            brush.rectangle(((x, y), corner), fill=shape.colour)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()
