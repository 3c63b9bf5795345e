from grace_dl.compat.dgc.sgd import DGCSGD as DGCSGD
