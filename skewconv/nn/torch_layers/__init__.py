"""What is known of PyTorch's own layers: one entry each, and nowhere else.

An entry says what a layer of ours says in its own class (see :mod:`skewconv.nn.protocol`): its bound, its float64
program where one is known (certificates refuse the others by name), how it is stored, what an audit shows of it.
"""

from dataclasses import replace

from torch import nn

from skewconv.nn.protocol import LayerRules, StoredForm, exact_program
from skewconv.nn.protocol.rules import enter_rules
from skewconv.nn.protocol.stored import Children, Settings, Tensors, assembled, attributes_of, constructed
from skewconv.nn.torch_layers import pools, products, slopes


def _stored(kind: type[nn.Module], *attributes: str) -> StoredForm:
    """By the arguments of its constructor; whether there is a bias is said in a word, as its values are a tensor."""
    values = attributes_of(*(name for name in attributes if name != "bias"))
    if "bias" not in attributes:
        return StoredForm(values, constructed(kind))
    return StoredForm(lambda module: {**values(module), "bias": module.bias is not None}, constructed(kind))


def _stored_sequential(settings: Settings, tensors: Tensors, children: Children) -> nn.Module:
    return assembled(nn.Sequential, settings, children)


_EXACT = LayerRules(slopes.one, exact_program, computes_as_stored=True)
_SLOPE_ONE = LayerRules(slopes.one)
_LINEAR = LayerRules(products.linear_bound, products.linear_program, is_affine=True, computes_as_stored=True)
_CONV = LayerRules(products.conv_bound, products.conv_program, audit_facts=products.conv_facts, is_affine=True)
_CONV_TRANSPOSE = LayerRules(products.conv_transpose_bound, is_affine=True)
_BATCH_NORM = LayerRules(products.batch_norm_bound, products.batch_norm_program, is_affine=True)
_MAX_POOL = LayerRules(pools.max_pool_bound, exact_program, computes_as_stored=True)
_AVG_POOL = LayerRules(pools.avg_pool_bound, pools.avg_pool_program, is_affine=True)
_ADAPTIVE_AVG_POOL = LayerRules(pools.adaptive_avg_pool_bound, pools.avg_pool_program, is_affine=True)

_CONV_ARGUMENTS = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias"),
    "padding_mode",
)
_AVG_POOL_ARGUMENTS = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_MAX_POOL_ARGUMENTS = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")


# type: (what is known of it, the arguments of its constructor by which it is stored)
_TABLE: dict[type[nn.Module], tuple[LayerRules, tuple[str, ...]]] = {
    nn.Identity: (_EXACT, ()),
    nn.Flatten: (_EXACT, ("start_dim", "end_dim")),
    nn.Unflatten: (_EXACT, ("dim", "unflattened_size")),
    nn.PixelShuffle: (_EXACT, ("upscale_factor",)),
    nn.PixelUnshuffle: (_EXACT, ("downscale_factor",)),
    nn.ChannelShuffle: (_EXACT, ("groups",)),
    nn.Dropout: (_EXACT, ("p",)),
    nn.Dropout1d: (_EXACT, ("p",)),
    nn.Dropout2d: (_EXACT, ("p",)),
    nn.Dropout3d: (_EXACT, ("p",)),
    nn.AlphaDropout: (_SLOPE_ONE, ("p",)),
    nn.FeatureAlphaDropout: (_SLOPE_ONE, ("p",)),
    nn.ZeroPad1d: (_EXACT, ("padding",)),
    nn.ZeroPad2d: (_EXACT, ("padding",)),
    nn.ZeroPad3d: (_EXACT, ("padding",)),
    nn.ConstantPad1d: (_SLOPE_ONE, ("padding", "value")),
    nn.ConstantPad2d: (_SLOPE_ONE, ("padding", "value")),
    nn.ConstantPad3d: (_SLOPE_ONE, ("padding", "value")),
    nn.ReLU: (_EXACT, ()),
    nn.ReLU6: (_EXACT, ()),
    # Its bounds are numbers of Python, which another precision rounds.
    nn.Hardtanh: (replace(_EXACT, computes_as_stored=False), ("min_val", "max_val")),
    nn.Tanh: (_SLOPE_ONE, ()),
    nn.Softsign: (_SLOPE_ONE, ()),
    nn.LogSigmoid: (_SLOPE_ONE, ()),
    nn.Sigmoid: (LayerRules(slopes.sigmoid), ()),
    nn.SiLU: (LayerRules(slopes.silu), ()),
    nn.GELU: (LayerRules(slopes.gelu), ("approximate",)),
    nn.LeakyReLU: (LayerRules(slopes.leaky_relu), ("negative_slope",)),
    nn.PReLU: (LayerRules(slopes.prelu), ("num_parameters",)),
    nn.ELU: (LayerRules(slopes.elu), ("alpha",)),
    nn.CELU: (LayerRules(slopes.celu), ("alpha",)),
    nn.SELU: (LayerRules(slopes.selu), ()),
    nn.Softmax: (LayerRules(slopes.softmax), ("dim",)),
    nn.Linear: (_LINEAR, ("in_features", "out_features", "bias")),
    nn.Conv1d: (_CONV, _CONV_ARGUMENTS),
    nn.Conv2d: (_CONV, _CONV_ARGUMENTS),
    nn.Conv3d: (_CONV, _CONV_ARGUMENTS),
    nn.ConvTranspose1d: (_CONV_TRANSPOSE, (*_CONV_ARGUMENTS, "output_padding")),
    nn.ConvTranspose2d: (_CONV_TRANSPOSE, (*_CONV_ARGUMENTS, "output_padding")),
    nn.ConvTranspose3d: (_CONV_TRANSPOSE, (*_CONV_ARGUMENTS, "output_padding")),
    nn.BatchNorm1d: (_BATCH_NORM, ("num_features", "eps", "affine")),
    nn.BatchNorm2d: (_BATCH_NORM, ("num_features", "eps", "affine")),
    nn.BatchNorm3d: (_BATCH_NORM, ("num_features", "eps", "affine")),
    nn.MaxPool1d: (_MAX_POOL, _MAX_POOL_ARGUMENTS),
    nn.MaxPool2d: (_MAX_POOL, _MAX_POOL_ARGUMENTS),
    nn.MaxPool3d: (_MAX_POOL, _MAX_POOL_ARGUMENTS),
    nn.AvgPool1d: (_AVG_POOL, _AVG_POOL_ARGUMENTS),
    nn.AvgPool2d: (_AVG_POOL, (*_AVG_POOL_ARGUMENTS, "divisor_override")),
    nn.AvgPool3d: (_AVG_POOL, (*_AVG_POOL_ARGUMENTS, "divisor_override")),
    nn.AdaptiveAvgPool1d: (_ADAPTIVE_AVG_POOL, ("output_size",)),
    nn.AdaptiveAvgPool2d: (_ADAPTIVE_AVG_POOL, ("output_size",)),
    nn.AdaptiveAvgPool3d: (_ADAPTIVE_AVG_POOL, ("output_size",)),
}

for _kind, (_rules, _arguments) in _TABLE.items():
    enter_rules(_kind, replace(_rules, stored_form=_stored(_kind, *_arguments)))
enter_rules(
    nn.Sequential,
    LayerRules(
        products.sequential_bound,
        links=products.sequential_links,
        stored_form=StoredForm(lambda module: {}, _stored_sequential),
    ),
)
