"""
The mathematics at work
=======================

A filter, its Jacobian, and the error of its exponential, measured and proven, for each degree: the same page that
``make core`` prints.
"""

import numpy as np
import scipy.linalg
import torch

from skewconv import ops

SIZE = (5, 5)


def main() -> None:
    """Print one page."""
    torch.manual_seed(0)
    raw = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    skew = ops.skew_filter(raw)
    skew = skew * (2.1 / ops.norm_upper_bound(skew))
    jacobian = ops.dense_jacobian(skew, SIZE).numpy()

    print("A skew filter L = M - transpose(M), 2 channels, 3 x 3. Channel 0 to 0, and 0 to 1 beside 1 to 0:")
    for title, tap in (("L[0, 0]", skew[0, 0]), ("L[1, 0]", skew[1, 0]), ("L[0, 1]", skew[0, 1])):
        print(f"\n{title}\n" + "\n".join("  " + "  ".join(f"{v:+.3f}" for v in row) for row in tap.tolist()))

    print(f"\nIts Jacobian on a {SIZE[0]} x {SIZE[1]} image is a {jacobian.shape[0]} x {jacobian.shape[1]} matrix J:")
    print(f"  max |J + J^T|                    {np.abs(jacobian + jacobian.T).max():.1e}   (Theorem 2: skew-symmetric)")
    exact = scipy.linalg.expm(jacobian)
    defect = np.linalg.norm(exact.T @ exact - np.eye(len(exact)), 2)
    print(f"  ||exp(J)^T exp(J) - I||          {defect:.1e}   (so exp(J) is orthogonal)")
    print(f"  ||J|| on this image              {np.linalg.norm(jacobian, 2):.4f}")
    for method in ("symbol", "gram", "fantastic-four"):
        print(f"  upper bound, any image: {method:<15}{ops.norm_upper_bound(skew, method):.4f}")

    rho = ops.norm_upper_bound(skew)
    print(f"\n||exp(J) - p(J)|| for polynomials of the given degree (= number of convolutions), norm bound {rho:.2f}:")
    print("  degree   Taylor measured   proven (Thm 3)   Chebyshev measured   proven      gain of Chebyshev")
    for degree in range(1, 13):
        cells = []
        for series in ("taylor", "chebyshev"):
            matrix = ops.dense_matrix(
                lambda x, d=degree, s=series: ops.conv_exp(x, skew, norm_bound=rho, degree=d, series=s), (2, *SIZE)
            )
            cells += [np.linalg.norm(matrix.numpy() - exact, 2), ops.truncation_error(rho, degree, series)]
        low, high = ops.gain(rho, degree, "chebyshev")
        print(
            f"  {degree:>4}     {cells[0]:>11.1e}      {cells[1]:>11.1e}      {cells[2]:>12.1e}      {cells[3]:>9.1e}"
            f"   [{low:.9f}, {high:.9f}]"
        )


if __name__ == "__main__":
    main()
