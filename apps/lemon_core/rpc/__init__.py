"""Lemon's contracts on the wire: converters, what both servers share, and the clients.

Nothing is re-exported here, because every module below imports grpc or protobuf, which take longer
to load than the rest of core: import the module that is needed, where it is needed.
"""
