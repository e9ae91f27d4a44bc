"""Blocks written with the flatbuffers package from the hand-copied tables: the codec's second opinion."""

from datetime import UTC, date, datetime

import flatbuffers

from conformance.wire import ENUMS, FIELDS, MEMBERS, SCALARS


def encode(block, version: int) -> bytes:
    builder = flatbuffers.Builder(0)
    builder.Finish(_table(builder, "MetadataBlock", block, version))
    content = bytes(builder.Output())
    builder = flatbuffers.Builder(0)
    vector = builder.CreateByteVector(content)
    builder.StartObject(3)
    builder.PrependInt64Slot(0, 0x400000, 0)
    builder.PrependInt32Slot(1, version, 0)
    builder.PrependUOffsetTRelativeSlot(2, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _table(builder, name, value, version):
    fields = FIELDS[name]
    placed = {}
    for field in fields:
        member = getattr(value, field.name)
        if member is not None and field.kind not in SCALARS and field.kind not in ENUMS:
            placed[field.name] = _placed(builder, field.kind, member, version)
    builder.StartObject(sum(2 if field.kind in MEMBERS else 1 for field in fields))
    slot = 0
    for field in fields:
        member = getattr(value, field.name)
        default = None if field.optional else 0
        if field.kind in MEMBERS:
            if member is not None:
                builder.PrependUint8Slot(slot, MEMBERS[field.kind].index(type(member).__name__) + 1, 0)
                builder.PrependUOffsetTRelativeSlot(slot + 1, placed[field.name], 0)
            slot += 2
            continue
        if member is not None:
            if field.kind in SCALARS:
                getattr(builder, f"Prepend{SCALARS[field.kind]}Slot")(slot, member, default)
            elif field.kind in ENUMS:
                getattr(builder, f"Prepend{ENUMS[field.kind]}Slot")(slot, member.value, default)
            elif field.kind == "timestamp":
                builder.PrependStructSlot(slot, _timestamp(builder, member, version), 0)
            else:
                builder.PrependUOffsetTRelativeSlot(slot, placed[field.name], 0)
        slot += 1
    return builder.EndObject()


def _placed(builder, kind, value, version):
    if kind == "timestamp":
        return None  # inside the table
    if kind.startswith("["):
        items = [_placed(builder, kind[1:-1], item, version) for item in value]
        builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            builder.PrependUOffsetTRelative(item)
        return builder.EndVector()
    if kind == "string":
        return builder.CreateString(value)
    if kind in ("hash", "id", "bytes"):
        return builder.CreateByteVector(value if kind == "bytes" else value.bytes)
    return _table(builder, type(value).__name__, value, version)


def _timestamp(builder, nanos, version):
    seconds, nanosecond = divmod(nanos, 1_000_000_000)
    days, second = divmod(seconds, 86_400)
    day = date.fromordinal(datetime(1970, 1, 1, tzinfo=UTC).toordinal() + days)
    builder.Prep(4 if version == 3 else 1, 16)
    new_head = builder.head - 16
    builder.Bytes[new_head : builder.head] = b"".join(
        [
            day.year.to_bytes(4, "little", signed=True),
            day.timetuple().tm_yday.to_bytes(2, "little"),
            bytes(2),
            second.to_bytes(4, "little"),
            nanosecond.to_bytes(4, "little"),
        ]
    )
    builder.head = new_head
    return builder.Offset()
