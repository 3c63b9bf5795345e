"""Mistakes that a type checker must find; each line that ends in a comment is one."""

import grace_dl as grace

grace.topk("much")  # wrong type
grace.topk(ratioo=0.1)  # wrong name
grace.attach(3, grace.topk(0.01))  # wrong target
grace.no_such_method()  # unknown method
grace.topk(0.01).no_such_attribute  # unknown attribute
