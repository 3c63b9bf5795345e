from ...memory.signum import SignumMemory as SignumMemory
