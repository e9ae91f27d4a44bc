"""A step does not use blocks of other programs that break a rule, neither of its inputs nor of its output."""

from pathlib import Path

import pytest

from chain.strategies import a_slice
from floodmark.chain.events import AddData
from floodmark.errors import RuleBroken
from ledger.other_writers import add_event, chain_state
from transforms.worlds import MAP, in_this_process, make_world


@pytest.mark.parametrize("broken", ["input", "output"])
def test_run_refuses_a_broken_chain_and_commits_nothing(broken: str, tmp_path: Path):
    with in_this_process():
        world = make_world(MAP, tmp_path)
        source, output = MAP.sources[0], MAP.outputs[0]
        world.write(source.name, (1, *(5 for _ in list(source.columns)[1:])))
        world.run()
        output_objects = world.lake[output.name].snapshot().objects
        objects = output_objects if broken == "output" else world.lake[source.name].snapshot().objects
        state = chain_state(objects)
        wrong = add_event(objects, AddData(prev_offset=7, new_data=a_slice(8, 8), new_watermark=state.watermark))
        head = output_objects.read_head()

        with pytest.raises(RuleBroken) as raised:
            world.run()

        assert raised.value.facts["hash"] == wrong
        assert output_objects.read_head() == head
        assert world.calls.all() == []
