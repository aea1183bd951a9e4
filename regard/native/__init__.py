"""The same models in C: an engine for searches, exact as they need it, and the kernels of a training step.

Compiled into a wheel or on the machine that runs it. It walks modules by type. Tasks search by `Native` and read by
`NativeReader`, training lends its kernels to the core. Begin with `model`, then `lend`.
"""

from regard.native.build import UnsupportedError
from regard.native.compiler import UnavailableError
from regard.native.model import Native, Shortlists
from regard.native.reader import NativeReader
from regard.native.rows import Addressed, Listened

__all__ = ["Addressed", "Listened", "Native", "NativeReader", "Shortlists", "UnavailableError", "UnsupportedError"]
