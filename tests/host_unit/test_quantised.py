"""The quantisation of a model is read off its weights, whichever library holds them."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch

from stagexec.host import used_models


class GGMLQuantizationType(enum.IntEnum):
    F32 = 0
    F16 = 1
    Q8_0 = 8
    Q2_K = 10
    Q4_K = 12
    Q6_K = 14
    IQ4_XS = 23
    BF16 = 30


class GGMLTensor(torch.Tensor):
    """A tensor that knows its GGUF type, as the packs for GGUF have it."""

    tensor_type: Any

    @staticmethod
    def of(tensor_type: Any, dtype: torch.dtype = torch.uint8) -> GGMLTensor:
        made = torch.zeros(4, 4, dtype=dtype).as_subclass(GGMLTensor)
        made.tensor_type = tensor_type
        return made

    def detach(self) -> GGMLTensor:
        return self


class Params4bit(torch.nn.Parameter):
    """As bitsandbytes names it."""


class Int8Params(torch.nn.Parameter):
    """As bitsandbytes names it."""


class SVDQW4A4Linear(torch.nn.Module):
    """As nunchaku has it: packed numbers, and the precision by name."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.precision = precision
        self.qweight = torch.nn.Parameter(torch.zeros(4, 2, dtype=torch.int8), requires_grad=False)


class Model(torch.nn.Module):
    """A model of layers; it says fp16 of itself, as GGUF models do."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def get_dtype(self) -> Any:
        return torch.float16


def layer(weight: Any, **more: Any) -> torch.nn.Module:
    made = torch.nn.Module()
    if not isinstance(weight, torch.nn.Parameter):
        weight = torch.nn.Parameter(weight, requires_grad=False)
    made.weight = weight
    for name, value in more.items():
        setattr(made, name, torch.nn.Parameter(value, requires_grad=False))
    return made


def four_bit(quant_type: str) -> Params4bit:
    made = Params4bit(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    made.quant_type = quant_type
    return made


PLAIN = layer(torch.zeros(4, 4, dtype=torch.float16))
FP8 = torch.zeros(4, 4).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("name", ["Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS"])
def test_every_quantised_gguf_type_is_named(name: str) -> None:
    number = GGMLQuantizationType[name]
    for told in (number, int(number), name):
        assert used_models.quantization(Model(PLAIN, layer(GGMLTensor.of(told)))) == name


@pytest.mark.parametrize(("name", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16), ("F32", None)])
def test_a_gguf_file_of_plain_numbers_is_not_quantised(name: str, dtype: torch.dtype | None) -> None:
    weight = GGMLTensor.of(GGMLQuantizationType[name], dtype or torch.float32)
    assert used_models.quantization(Model(layer(weight))) is None


def test_a_gguf_of_several_types_names_all_of_them() -> None:
    mixed = Model(*(layer(GGMLTensor.of(GGMLQuantizationType[one])) for one in ("Q6_K", "Q4_K", "F32")))
    assert used_models.quantization(mixed) == "Q4_K, Q6_K"


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((PLAIN,), None),
        ((layer(torch.zeros(4, 4, dtype=torch.bfloat16)),), None),
        ((PLAIN, layer(FP8)), "float8_e4m3fn"),
        ((layer(FP8, scale_weight=torch.ones(1)),), "float8_e4m3fn scaled"),
        ((layer(torch.zeros(4, 4).to(torch.float8_e5m2)), layer(FP8)), "float8_e4m3fn, float8_e5m2"),
        ((layer(four_bit("nf4")),), "nf4"),
        ((layer(four_bit("fp4")),), "fp4"),
        ((layer(Int8Params(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)),), "int8"),
        ((layer(torch.zeros(4, 4, dtype=torch.int8)),), "int8"),
        ((SVDQW4A4Linear("int4"),), "svdquant int4"),
        ((SVDQW4A4Linear("nvfp4"), PLAIN), "svdquant nvfp4"),
    ],
)
def test_other_formats_are_told_by_their_tensors_and_layers(layers: Any, expected: str | None) -> None:
    assert used_models.quantization(Model(*layers)) == expected


def test_a_position_table_of_whole_numbers_is_no_quantised_weight() -> None:
    model = Model(PLAIN)
    model.register_buffer("position_ids", torch.arange(77).expand(1, -1))
    assert used_models.quantization(model) is None


def test_a_model_without_a_dtype_of_its_own_has_that_of_most_of_its_weights() -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(64, 64).to(torch.bfloat16))
    assert used_models.weights(model) == "bfloat16"


def test_a_model_that_is_quantised_in_place_is_told_anew() -> None:
    model = Model(torch.nn.Linear(4, 4).to(torch.float16))
    assert used_models.quantization(model) is None
    model.layers[0].weight = torch.nn.Parameter(FP8, requires_grad=False)
    assert used_models.quantization(model) == "float8_e4m3fn"
