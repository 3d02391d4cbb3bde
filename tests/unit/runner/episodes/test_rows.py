"""Rows from turns."""

from tuning_contract.run_document import Sampling
from tuning_runner.episodes.rows import Row, rows_of
from tuning_runner.episodes.turns import Turn


def a_turn(prompt: tuple[int, ...], completion: tuple[int, ...], number: int = 0) -> Turn:
    return Turn(
        number=number,
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=tuple(-float(token) for token in completion),
        finish="stop",
        seconds=0.1,
        seed=1,
        sampling=Sampling(),
        messages=(),
        reply={"role": "assistant", "content": ""},
        stitched=False,
        drifted=False,
    )


def test_a_turn_that_continues_a_row_extends_it_and_masks_what_the_environment_wrote() -> None:
    rows = rows_of([a_turn((1, 2), (3, 4)), a_turn((1, 2, 3, 4, 5, 6), (7,))])
    assert rows == (Row((1, 2), (3, 4, 5, 6, 7), (1, 1, 0, 0, 1), (-3.0, -4.0, 0.0, 0.0, -7.0)),)


def test_interleaved_conversations_extend_their_own_rows() -> None:
    rows = rows_of([a_turn((1,), (2,)), a_turn((8,), (9,)), a_turn((1, 2, 3), (4,)), a_turn((8, 9, 7), (6,))])
    assert [(row.prompt_ids, row.completion_ids) for row in rows] == [((1,), (2, 3, 4)), ((8,), (9, 7, 6))]


def test_the_same_question_asked_twice_makes_two_rows() -> None:
    assert len(rows_of([a_turn((1,), (2,)), a_turn((1,), (3,))])) == 2


def test_an_episode_without_a_turn_has_no_row() -> None:
    assert rows_of([]) == ()
