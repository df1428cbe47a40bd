import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from untail.rewards.sandbox.plain import from_plain, to_plain

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    hashable | st.complex_numbers(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(hashable, inner, max_size=3) | st.sets(hashable, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(values)
def test_there_and_back_through_json(value: Any) -> None:
    back = from_plain(json.loads(json.dumps(to_plain(value))))
    assert back == value
    assert type(back) is type(value)


def test_dicts_that_look_like_tags_stay_dicts() -> None:
    value = {"__tuple__": [1]}
    assert from_plain(to_plain(value)) == value


def test_subclasses_become_plain() -> None:
    value = [np.float64(0.5), np.int64(3), np.str_("x"), np.bool_(True), Counter("aa")]
    back = from_plain(json.loads(json.dumps(to_plain(value))))
    assert back == [0.5, 3, "x", True, {"a": 2}]
    assert [type(item) for item in back] == [float, int, str, bool, dict]


def test_what_has_no_plain_form_is_refused_or_handed_over() -> None:
    with pytest.raises(TypeError, match="of type object"):
        to_plain([object()])
    plain = to_plain([print], other=lambda value: {"__name__": value.__name__})
    assert from_plain(plain, {"__name__": str.upper}) == ["PRINT"]
