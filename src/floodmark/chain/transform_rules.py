"""What a transform and its transactions must satisfy: rules 6 and 7 of the chain."""

from __future__ import annotations

from floodmark.chain import errors
from floodmark.chain.events import AddData, DatasetKind, ExecuteTransform, MetadataBlock, SetTransform, kind
from floodmark.chain.state import ChainState, InputPosition, input_ids

# Rule 6: transactions of a transform


def event_fits_the_kind_of_dataset(state: ChainState, block: MetadataBlock) -> None:
    """A root takes data in, a derivative computes it."""
    wrong = (
        (isinstance(block.event, AddData) and state.dataset_kind is DatasetKind.DERIVATIVE)
        or (isinstance(block.event, ExecuteTransform) and state.dataset_kind is DatasetKind.ROOT)
    )  # fmt: skip
    if wrong and state.dataset_kind is not None:
        message = f"a {state.dataset_kind.name.lower()} dataset cannot have {kind(block.event)}."
        raise errors.WrongDatasetKind.at(block, message, dataset_kind=state.dataset_kind)


def transform_precedes_its_execution(state: ChainState, block: MetadataBlock) -> None:
    """There is a transform before it is executed."""
    if isinstance(block.event, ExecuteTransform) and state.transform is None:
        raise errors.TransformMissing.at(block, "ExecuteTransform comes before any SetTransform.")


def inputs_are_those_of_the_transform(state: ChainState, block: MetadataBlock) -> None:
    """A transaction lists every input of the transform, in its order."""
    if not isinstance(block.event, ExecuteTransform) or state.transform is None:
        return
    actual = tuple(item.dataset_id for item in block.event.query_inputs)
    expected = input_ids(state.transform)
    if actual != expected:
        message = f"the inputs are {_listed(actual)}, but the transform's are {_listed(expected)}."
        raise errors.InputsMismatch.at(block, message, expected=expected, actual=actual)


def inputs_continue_where_they_were_left(state: ChainState, block: MetadataBlock) -> None:
    """An input's prev is what the last transaction had as its new, or else its prev."""
    if not isinstance(block.event, ExecuteTransform):
        return
    known = {position.dataset_id: position for position in state.inputs}
    for item in block.event.query_inputs:
        expected = known.get(item.dataset_id, InputPosition(item.dataset_id, None, None))
        actual = InputPosition(item.dataset_id, item.prev_block_hash, item.prev_offset)
        if actual != expected:
            message = (
                f"input {item.dataset_id} starts from block {actual.block_hash}, offset {actual.offset}, "
                f"but was left at block {expected.block_hash}, offset {expected.offset}."
            )
            raise errors.InputPositionMismatch.at(block, message, expected=expected, actual=actual)


def inputs_move_only_forward(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """An input's new block and offset differ from its prev; absent means that it did not move."""
    if not isinstance(block.event, ExecuteTransform):
        return
    for item in block.event.query_inputs:
        same_block = item.new_block_hash is not None and item.new_block_hash == item.prev_block_hash
        before = -1 if item.prev_offset is None else item.prev_offset
        if same_block or (item.new_offset is not None and item.new_offset <= before):
            message = (
                f"input {item.dataset_id} does not advance: from block {item.prev_block_hash}, offset "
                f"{item.prev_offset} to block {item.new_block_hash}, offset {item.new_offset}."
            )
            raise errors.InputNotAdvanced.at(block, message, dataset_id=item.dataset_id)


def new_input_offset_comes_with_its_block(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """Offsets of an input only move together with its blocks."""
    if not isinstance(block.event, ExecuteTransform):
        return
    for item in block.event.query_inputs:
        if item.new_offset is not None and item.new_block_hash is None:
            message = f"input {item.dataset_id} moves to offset {item.new_offset} without a new block."
            raise errors.InputOffsetWithoutBlock.at(block, message, dataset_id=item.dataset_id)


# Rule 7: a transform can be executed


def transform_has_inputs(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """A transform reads something."""
    if isinstance(block.event, SetTransform) and not block.event.inputs:
        raise errors.TransformWithoutInputs.at(block, "SetTransform names no input.")


def transform_inputs_are_unique(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """No dataset and no alias occurs twice."""
    if not isinstance(block.event, SetTransform):
        return
    refs = [item.dataset_ref for item in block.event.inputs]
    aliases = [item.alias for item in block.event.inputs if item.alias is not None]
    for name in (*refs, *aliases):
        if refs.count(name) > 1 or aliases.count(name) > 1:
            raise errors.DuplicateInput.at(block, f"SetTransform names {name} twice.", input=name)


def transform_inputs_are_resolved(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """Inputs are named by their ids, which stay when a dataset is renamed."""
    if not isinstance(block.event, SetTransform):
        return
    for item, id_ in zip(block.event.inputs, input_ids(block.event), strict=True):
        if id_ is None:
            message = f"the input {item.dataset_ref!r} of SetTransform is not a dataset id."
            raise errors.UnresolvedInput.at(block, message, input=item.dataset_ref)


def transform_inputs_are_aliased(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """Every input has the name that the queries use."""
    if not isinstance(block.event, SetTransform):
        return
    for item in block.event.inputs:
        if not item.alias:
            message = f"the input {item.dataset_ref!r} of SetTransform has no alias."
            raise errors.UnaliasedInput.at(block, message, input=item.dataset_ref)


def only_the_last_query_has_no_alias(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """The last query is the result; those before it have names to be used by."""
    if not isinstance(block.event, SetTransform) or not block.event.transform.queries:
        return
    *steps, last = (query.alias for query in block.event.transform.queries)
    if last is not None:
        message = f"the last query is the result and has no alias, but this one is called {last!r}."
        raise errors.QueryAliasMisplaced.at(block, message, query=len(steps))
    if None in steps:
        number = steps.index(None)
        message = f"query {number} has no alias; only the last one may have none."
        raise errors.QueryAliasMisplaced.at(block, message, query=number)


def _listed(ids: tuple[object, ...]) -> str:
    return ", ".join(str(id_) for id_ in ids) or "none"
