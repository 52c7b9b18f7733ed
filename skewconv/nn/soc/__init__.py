"""Skew orthogonal convolutions (SOC), their complex siblings (SUC), and their adjoints: drop-ins for nn.Conv."""

from skewconv.nn.soc.skew_conv import SkewConv


class SOC1d(SkewConv):
    """Orthogonal 1d convolution; see :class:`SOC2d`.

    There is no causal one: the matrix of a causal map between signals of one length is block-triangular, and an
    orthogonal matrix that is block-triangular is block-diagonal, so that it mixes channels and no times.
    """

    axes, is_complex = 1, False


class SOC2d(SkewConv):
    """Orthogonal 2d convolution: S = exp(J), J the Jacobian of a skew filter (Algorithm 1 of the paper).

    >>> import torch
    >>> layer = SOC2d(4, 4, 3, bias=False).eval()
    >>> x = torch.randn(2, 4, 8, 8)
    >>> y = layer(x)
    >>> torch.testing.assert_close(y.norm(), x.norm())
    >>> torch.testing.assert_close(layer.inverse(y), x, atol=1e-4, rtol=0)

    The filter has m = max(in_channels * prod(stride), out_channels) channels. Missing input channels are zero, surplus
    output channels are dropped, and the stride is an invertible downsampling, so that S preserves norms forward where
    nothing is dropped, and gradient norms backward where nothing is padded. Only the free half of the filter is stored.

    In training the polynomial is a short one by default, which keeps the norm of signals and gradients through a
    hundred layers, and the filter is scaled by an estimate of its norm, one step of power iteration for every change of
    the parameters. In evaluation the scale is a proven upper bound. :meth:`gain_bounds` and :meth:`inverse` are those
    of the present mode. For normalising flows use ``accurate=True``: the layer is then an isometry in training too, to
    ``eval_tol``, and log |det| is zero to n times the logarithm of the gain, for n entries.

    Args:
        in_channels, out_channels, kernel_size, stride, dilation, groups, bias, device, dtype: as in nn.Conv2d; kernels
            may be odd, even and rectangular, each group maps its own inputs to its own outputs.
        padding: "same", or the number that means it: 1 for a kernel of size 3.
        padding_mode: "zeros" or "circular".
        series: "chebyshev", or "taylor" as in the paper (with ``train_degree=5, eval_degree=11`` exactly the paper).
        train_series: the polynomial of training: "isometric" by default, "taylor" where ``series`` is, or "chebyshev".
        train_degree, eval_degree: the number of convolutions; by default the fewest that reach the tolerance.
        train_tol: the largest root-mean-square error of training on the spectrum that filters have, 0.03 by default;
            whatever it is, 100 layers keep norms within 10 % (see
            :func:`skewconv.ops.polynomials.training_polynomial`).
        eval_tol: the largest error allowed in ||S - exp(J)||, 1e-6 by default.
        accurate: train with the polynomial of evaluation, as flows need it, in place of a coarser and faster one.
        norm_bound: the norm to which the Jacobian is scaled; 0.7 sqrt(h w) by default, 1 for 1 x 1 kernels.
        norm: "tracked", or "bound": in training the polynomial is made for the norm that the filter really has, which
            is estimated now and then, or for its bound, with a product more.
        init_scale: the parameters start with a standard deviation of this over the root of the channels of a group; 1
            is the scale of the paper's authors. Steps of SGD turn a filter by rate / scale^2, those of Adam by
            rate / scale.
        learn_scale: None, or where a factor of the filter starts that is learned, a share of ``norm_bound`` above 0 and
            at most 1: deep networks may then keep most layers near the identity, where fewer products do.
        engine: how the exponential is computed; see :func:`skewconv.ops.conv_exp`.
        recompute: keep the memory of the backward pass independent of the degree, at the cost of a second pass
            through the recurrence.
    """

    axes, is_complex = 2, False


class SOC3d(SkewConv):
    """Orthogonal 3d convolution; see :class:`SOC2d`."""

    axes, is_complex = 3, False


class SUC1d(SkewConv):
    """Unitary 1d convolution of complex images; see :class:`SOC2d`."""

    axes, is_complex = 1, True


class SUC2d(SkewConv):
    """Unitary 2d convolution of complex images, from a skew-Hermitian filter; see :class:`SOC2d`.

    >>> import torch
    >>> x = torch.randn(1, 2, 6, 6, dtype=torch.complex64)
    >>> layer = SUC2d(2, 2, 3, bias=False).eval()
    >>> torch.testing.assert_close(layer(x).norm(), x.norm())
    """

    axes, is_complex = 2, True


class SUC3d(SkewConv):
    """Unitary 3d convolution of complex images; see :class:`SOC2d`."""

    axes, is_complex = 3, True


class SOCTranspose1d(SkewConv):
    """The adjoint of SOC1d(out_channels, in_channels, ...); see :class:`SOCTranspose2d`."""

    axes, is_complex, transposed = 1, False, True


class SOCTranspose2d(SkewConv):
    """The adjoint map of SOC2d(out_channels, in_channels, ...), for decoders: a stride enlarges the image.

    >>> import torch
    >>> SOCTranspose2d(8, 2, 3, stride=2)(torch.zeros(1, 8, 4, 4)).shape
    torch.Size([1, 2, 8, 8])
    """

    axes, is_complex, transposed = 2, False, True


class SOCTranspose3d(SkewConv):
    """The adjoint of SOC3d(out_channels, in_channels, ...); see :class:`SOCTranspose2d`."""

    axes, is_complex, transposed = 3, False, True
