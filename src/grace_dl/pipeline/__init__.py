"""The way of a bucket of gradients through compression and exchange, in an order all ranks share."""
