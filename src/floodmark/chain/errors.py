"""What can go wrong with a metadata chain: unreadable text or bytes, and one error class per broken rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.chain.events import MetadataBlock
    from floodmark.chain.hashes import Multihash


class ChainError(FloodmarkError):
    """Something in a dataset's metadata is not as the format says."""


class BadHash(ChainError):
    """Text or bytes that are not a multihash of a kind we know."""


class BadDatasetId(ChainError):
    """Text or bytes that are not a dataset id."""


class BadHead(ChainError):
    """The content of `refs/head` is not exactly one block hash."""


class CorruptBlock(ChainError):
    """Bytes that do not hold a metadata block."""


class UnsupportedBlockVersion(ChainError):
    """A block written in a version of the format that this release does not read."""

    version: int


class UnencodableBlock(ChainError):
    """A block with a value that the format has no room for."""


class BlockHashMismatch(ChainError):
    """A block's bytes do not hash to the name they were found under."""

    expected: Multihash
    actual: Multihash


class BadSkipPointers(ChainError):
    """Skip pointers that are damaged, or spans that do not lie side by side."""


class RuleBroken(ChainError):
    """A block breaks a rule that every chain must satisfy; `rule` is its number, 1 to 8."""

    rule: ClassVar[int]
    sequence_number: int

    @classmethod
    def at(cls, block: MetadataBlock, message: str, *, hint: str = "", **facts: Any) -> Self:
        """This rule broken by this block."""
        facts["sequence_number"] = block.sequence_number
        return cls(f"Block {block.sequence_number}: {message}", hint=hint, **facts)


class SeedMissing(RuleBroken):
    """The first block of a chain is not a Seed."""

    rule = 1


class SeedRepeated(RuleBroken):
    """A Seed occurs after the first block."""

    rule = 1


class SequenceBroken(RuleBroken):
    """A block's sequence number does not follow its predecessor's."""

    rule = 1


class PrevBlockMismatch(RuleBroken):
    """A block does not name the hash of the block before it."""

    rule = 1


class SystemTimeWentBack(RuleBroken):
    """A block says it was written before its predecessor."""

    rule = 2


class WatermarkWentBack(RuleBroken):
    """A watermark is earlier than one already set."""

    rule = 2


class WatermarkLost(RuleBroken):
    """A data block does not carry the watermark that was set before."""

    rule = 2


class PrevOffsetMismatch(RuleBroken):
    """A data block does not continue from the chain's last offset."""

    rule = 3


class OffsetGap(RuleBroken):
    """New data does not start right after the chain's last offset."""

    rule = 3


class IntervalReversed(RuleBroken):
    """New data ends before it starts."""

    rule = 3


class NoOpEvent(RuleBroken):
    """A data block changes nothing."""

    rule = 4


class DataBeforeSchema(RuleBroken):
    """Data comes before the chain's first SetDataSchema."""

    rule = 5


class PrevCheckpointMismatch(RuleBroken):
    """A data block does not continue from the chain's last checkpoint."""

    rule = 5


class SourceStateLost(RuleBroken):
    """An AddData block does not carry the source state that was set before."""

    rule = 5


class WrongDatasetKind(RuleBroken):
    """An event that this kind of dataset cannot have."""

    rule = 6


class TransformMissing(RuleBroken):
    """ExecuteTransform comes before any SetTransform."""

    rule = 6


class InputsMismatch(RuleBroken):
    """ExecuteTransform does not list the transform's inputs in their order."""

    rule = 6


class InputPositionMismatch(RuleBroken):
    """An input does not continue from where the last transaction left it."""

    rule = 6


class InputNotAdvanced(RuleBroken):
    """An input's new position equals its previous one, or goes back."""

    rule = 6


class InputOffsetWithoutBlock(RuleBroken):
    """An input has a new offset but no new block."""

    rule = 6


class TransformWithoutInputs(RuleBroken):
    """SetTransform names no input."""

    rule = 7


class DuplicateInput(RuleBroken):
    """SetTransform names the same input or alias twice."""

    rule = 7


class UnresolvedInput(RuleBroken):
    """An input of SetTransform is not a dataset id."""

    rule = 7


class UnaliasedInput(RuleBroken):
    """An input of SetTransform has no alias."""

    rule = 7


class QueryAliasMisplaced(RuleBroken):
    """A query step other than the last has no alias, or the last one has."""

    rule = 7


class SchemaEvolutionError(RuleBroken):
    """A new schema is not one that the old data could be read with."""

    rule = 8
    field: str


class FieldRemoved(SchemaEvolutionError):
    """A field of the old schema is gone."""


class FieldTypeChanged(SchemaEvolutionError):
    """A field has another type than before."""


class FieldOptionalityChanged(SchemaEvolutionError):
    """A field was optional and is required now, or the other way round."""


class NewFieldRequired(SchemaEvolutionError):
    """A new field is not optional, so older records could not have it."""


class DuplicateField(SchemaEvolutionError):
    """Two fields of a schema have the same name."""


class SchemaUnchanged(RuleBroken):
    """SetDataSchema repeats the schema that is there already."""

    rule = 8


class SchemaMissing(RuleBroken):
    """SetDataSchema holds no schema, or falls back to the old form that cannot be compared."""

    rule = 8
