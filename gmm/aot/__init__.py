"""Evidence without hardware: what the TPU compiler makes of a program.

    from gmm import aot
    compiled = aot.compile_for(train_step, state, batch, chip="v6e")
    aot.weight_copies(compiled, min_bytes=1 << 20, chip="v6e")
    fn, specs = aot.product("nt", m=65536, g=128, k=3072, n=2048, chip="v6e")
    aot.schedule(fn, *specs, chip="v6e")
    aot.roofline("nt", m=65536, g=128, k=3072, n=2048, chip="v6e")

Nothing here needs a TPU, or runs on one. Compiling needs libtpu.
"""

from gmm.aot.bundles import FormatError as FormatError
from gmm.aot.compiling import CompileError as CompileError
from gmm.aot.compiling import Product as Product
from gmm.aot.compiling import compile_for as compile_for
from gmm.aot.compiling import product as product
from gmm.aot.compiling import spec as spec
from gmm.aot.copies import Copy as Copy
from gmm.aot.copies import weight_copies as weight_copies
from gmm.aot.dumping import Compiled as Compiled
from gmm.aot.dumping import schedule as schedule
from gmm.aot.dumping import scheduler as scheduler
from gmm.aot.hlo import EntryLayout as EntryLayout
from gmm.aot.hlo import entry_layouts as entry_layouts
from gmm.aot.model import Roofline as Roofline
from gmm.aot.model import roofline as roofline
from gmm.aot.placing import mesh as mesh
from gmm.aot.scheduling import Arm as Arm
from gmm.aot.scheduling import Schedule as Schedule
