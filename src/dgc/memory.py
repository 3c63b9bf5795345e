from grace_dl.compat.dgc.memory import DGCSGDMemory as DGCSGDMemory
from grace_dl.compat.dgc.memory import Memory as Memory
