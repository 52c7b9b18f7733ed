"""Memory that a training step frees stays with the process, for the next step to take.

The allocator of glibc gives large blocks back to the system, which then has to clear every page of the next one: of a
LipConvnet-5 of width 32 that is a twentieth of a step.
"""

import ctypes

# Of malloc.h: the most free memory that is kept at the end of the heap, and the most blocks that lie outside of it.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, where the allocator can be told so; whether it could.

    It is for programs that train, and changes the whole process: a library has no right to do it when it is imported.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
