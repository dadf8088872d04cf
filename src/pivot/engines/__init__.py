"""Who owns the weights and the devices, behind one interface: `base.Engine`.

`local` is one process; `ranks` is the generic half of an engine whose model is spread over processes; `verl` is such
an engine on Ray, FSDP2 and vLLM.
"""
