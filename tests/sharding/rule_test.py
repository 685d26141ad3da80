"""Sharding rules: their meaning, and errors when an operator is defined."""

import re

import pytest
import torch

from torch_xla_ext import define_in_place_operator, define_operator
from torch_xla_ext.sharding.rule import parse


def test_notation() -> None:
    rule = parse("s (k g) _ , _ _ (k 2)_,s,, ... n -> s (k g) _ ... n")
    assert rule.operands == (
        (("s",), ("k", "g"), ()),
        ((), (), ("k", 2), ()),
        (("s",),),
        (),
        (("...",), ("n",)),
    )
    assert rule.dims(3, rule.operands[4]) == (("...0",), ("...1",), ("n",))
    assert rule.dims(1, rule.operands[4]) == (("n",),)


def test_sizes_of_factors() -> None:
    rule = parse("s (k g) _, _ _ (k 2) _ -> s (k g) _")
    assert rule.sizes([(3, 8, 64), (9, 9, 4, 64)]) == {"s": 3, "k": 2, "g": 4}
    assert rule.sizes([(3, 8, 64), None]) == {"s": 3}
    with pytest.raises(
        ValueError, match=re.escape("operand 1 has 5 for (k 2), which is not a mult")
    ):
        rule.sizes([(3, 8, 64), (9, 9, 5, 64)])
    with pytest.raises(ValueError, match="operand 1 has 4 for n, but other operands imply 3"):
        parse("n, n -> n").sizes([(3,), (4,)])


def test_a_declared_sum() -> None:
    rule = parse("n t, t -> n, n t; sum t")
    assert rule.sums == ("t",)
    assert rule.results == ((("n",),), (("n",), ("t",)))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("n, n", "must have one ->"),
        ("n -> n -> n", "must have one ->"),
        ("n, m! -> n", "'!' cannot be parsed"),
        ("n (m -> n", r"a \) is missing"),
        ("n ) -> n", r"'\)' is misplaced"),
        ("(n (m)) -> n", r"'\(' is misplaced"),
        ("() -> _", r"'\)' is misplaced"),
        ("(n _) -> n", "'_' is misplaced"),
        ("n 2 -> n _", "number 2 stands alone"),
        ("n n -> n", "operand 0 has the factor n twice"),
        ("n -> m", "m of result 0 is in no operand"),
        ("n t -> n", "t is in an operand, but not in result 0.*write _ for"),
        ("n -> n, _", "n is in an operand, but not in result 1"),
        ("n t -> n; t", "'t' must be 'sum' and the names of factors"),
        ("n t -> n; sum", "'sum' must be 'sum' and the names of factors"),
        ("n t -> n; sum n t", "no sum over n"),
        ("n -> n; sum m", "no sum over m"),
        ("(k g) -> (k g)", r"sizes of k and g in \(k g\) follow from no operand"),
    ],
)
def test_wrong_rules_are_refused(rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("n, n, n -> n", "has 3 operands, but there are 2: a, b"),
        ("n, n -> n, n", "has 2 results, but there are 1: out"),
        ("n, m -> n", "m is in an operand, but not in result 0"),
        (7, "sharding_rule must be a str, but is of type int"),
    ],
)
def test_a_wrong_rule_defines_no_operator(rule: object, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"my_rules::add: .*{message}"):
        define_operator(
            "my_rules::add(Tensor a, Tensor b) -> Tensor",
            target="XlaGpuSimpleAdd",
            sharding_rule=rule,
        )
    assert not hasattr(torch.ops.my_rules, "add")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("_ k _, _ k, _, _ _ k _, _ _ k _ -> _ _ k _, _ _ k _", "2 dimensions for operand value"),
        (
            "_ k _, _ k _, _, _ _ k _, _ _ _ k -> _ _ k _, _ _ _ k",
            "k stands for the signature's num_kv_heads, and also for head_dim in value_cache",
        ),
        (
            "t k _, t k _, t, _ _ k _, _ _ k _ -> _ _ k _, _ _ k _; sum t",
            "result 0 shares the buffer of operand 3, whose values each device has",
        ),
        (
            "_ k _, _ k _, _, _ _ k _, _ _ k _ -> _ _ k _, k _ _ _",
            "result 1 shares the buffer of operand 4, so it must be sharded in the same way",
        ),
    ],
)
def test_definition_in_place(rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"my_rules::update.*{message}"):
        define_in_place_operator(
            "my_rules::update(Tensor key, Tensor value, Tensor slot_mapping, Tensor(a!) key_cache, "
            "Tensor(b!) value_cache) -> ()",
            target="XlaGpuKvCacheUpdate",
            attributes=lambda **others: {
                "key_scale": 1.0,
                "value_scale": 1.0,
                "report_out_of_range": False,
            },
            sharding_rule=rule,
        )


def test_a_result_in_place_must_be_returned() -> None:
    with pytest.raises(
        ValueError, match="value_cache is written in place, so its new value must be"
    ):
        define_operator(
            "my_rules::put(Tensor key, Tensor value, Tensor slot_mapping, Tensor key_cache, "
            "Tensor value_cache) -> Tensor",
            target="XlaGpuKvCacheUpdate",
            attributes=dict,
            sharding_rule="_ k _, _ k _, _, _ _ k _, _ _ k _ -> _ _ k _",
        )
