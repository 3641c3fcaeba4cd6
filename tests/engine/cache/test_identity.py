"""Names of prefixes: equal exactly if everything that decides the computation is equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.engine.cache.identity import HashChain
from openk3.errors import ConfigError
from openk3.protocol.request import MediaSpan


def keys(ids: list[int], unit: int = 16, salt: bytes = b"", media: tuple[MediaSpan, ...] = ()) -> list[bytes]:
    chain = HashChain(unit, salt=salt, media=media)
    chain.extend(ids)
    return chain.keys


@given(ids=st.lists(st.integers(0, 2**32 - 1), max_size=100), cuts=st.lists(st.integers(0, 100), max_size=5))
def test_names_do_not_depend_on_how_the_ids_arrive(ids: list[int], cuts: list[int]) -> None:
    chain, at = HashChain(16), 0
    for cut in [*sorted(cuts), len(ids)]:
        chain.extend(tuple(ids[at:cut]))
        at = max(at, cut)
    assert chain.keys == keys(ids)
    assert len(chain.keys) == len(ids) // 16
    assert chain.num_tokens == len(ids)
    assert all(len(key) == 16 for key in chain.keys)


@given(ids=st.lists(st.integers(0, 9), min_size=64, max_size=64), at=st.integers(0, 63))
def test_one_other_token_renames_everything_from_its_unit_on(ids: list[int], at: int) -> None:
    other = [*ids[:at], ids[at] + 1, *ids[at + 1 :]]
    same = [a == b for a, b in zip(keys(ids), keys(other), strict=True)]
    assert same == [unit < at // 16 for unit in range(4)]


def test_salts_share_nothing() -> None:
    ids = list(range(64))
    names = [set(keys(ids, salt=salt)) for salt in (b"", b"a", b"b", b"16:", b"ab")]
    assert len(set.union(*names)) == sum(len(each) for each in names)


def test_units_share_nothing() -> None:
    ids = list(range(96))
    assert not set(keys(ids, 16)) & set(keys(ids, 32))
    assert not set(keys(ids, 16, salt=b"32:x")) & set(keys(ids, 32, salt=b"x"))


def test_different_images_behind_equal_placeholders_have_different_names() -> None:
    ids = [7] * 64
    plain = keys(ids)
    cat, dog = (keys(ids, media=(MediaSpan(20, 8, digest),)) for digest in (b"cat", b"dog"))
    assert cat[0] == dog[0] == plain[0]
    assert len({cat[1], dog[1], plain[1]}) == len({cat[3], dog[3], plain[3]}) == 3


@pytest.mark.parametrize(
    "one, other",
    [
        ((MediaSpan(20, 8, b"x"),), (MediaSpan(21, 8, b"x"),)),
        ((MediaSpan(20, 8, b"x"),), (MediaSpan(20, 9, b"x"),)),
        ((MediaSpan(16, 1, b"a"), MediaSpan(17, 1, b"b")), (MediaSpan(16, 1, b"b"), MediaSpan(17, 1, b"a"))),
        ((MediaSpan(16, 1, b"a"), MediaSpan(17, 1, b"b")), (MediaSpan(16, 1, b"ab"), MediaSpan(17, 1, b""))),
    ],
)
def test_where_an_image_stands_is_part_of_the_name(one: tuple[MediaSpan, ...], other: tuple[MediaSpan, ...]) -> None:
    assert keys([7] * 32, media=one)[1] != keys([7] * 32, media=other)[1]


def test_the_order_in_which_images_are_listed_does_not_matter() -> None:
    spans = (MediaSpan(3, 2, b"a"), MediaSpan(9, 30, b"b"))
    assert keys([7] * 48, media=spans) == keys([7] * 48, media=spans[::-1])


def test_overlapping_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="overlap at token 4"):
        HashChain(16, media=(MediaSpan(0, 5, b"a"), MediaSpan(4, 1, b"b")))


@pytest.mark.parametrize("unit", [0, -16, 8, 24])
def test_a_unit_that_the_model_cannot_stop_at_is_refused(unit: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 16"):
        HashChain(unit)


@pytest.mark.parametrize("bad", [-1, 2**32, "a"])
def test_a_bad_id_appends_nothing(bad: int) -> None:
    chain = HashChain()
    chain.extend([1, 2])
    with pytest.raises(ConfigError, match="cannot be named"):
        chain.extend([*range(20), bad])
    assert chain.num_tokens == 2 and not chain.keys


def test_image_far_into_a_prompt_still_counts_when_ids_come_one_by_one() -> None:
    media = (MediaSpan(40, 4, b"x"),)
    chain = HashChain(16, media=media)
    for _ in range(64):
        chain.extend([7])
    assert chain.keys == keys([7] * 64, media=media)
