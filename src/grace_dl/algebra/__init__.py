"""Methods as values: immutable, comparable, printable; they own no state and attach to any number of models.

>>> import grace_dl as grace
>>> grace.topk(0.01)
grace.topk(ratio=0.01)
>>> str(grace.schedule((0, grace.none()), (500, grace.topk(0.01))))
'schedule(0=none; 500=topk:0.01)'
>>> grace.parse("topk:0.01,beta=0.9") == grace.topk(0.01, beta=0.9)
True
"""
