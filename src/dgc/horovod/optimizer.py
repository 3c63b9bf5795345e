from grace_dl.compat.dgc.optimizer import DistributedOptimizer as DistributedOptimizer
