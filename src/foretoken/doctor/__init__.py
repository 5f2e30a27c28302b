"""What runs on this machine, how fast it can be, and what to do about what is in the way: `foretoken doctor`.

    facts      what is known of a machine: values, and nothing else
    gather     asks for all of them; who imports engine or speed imports PyTorch, which it does last
    machine    processor, cores, memory, who else is busy: as psutil, /sys and control groups tell it
    engine     the native module and its instruction sets, threads, parts that are optional
    speed      of memory and of the disk where models lie; huge pages
    fits       which models fit into memory, in which format, and how fast memory lets them be
    findings   judges facts, without looking at the machine: a status, a sentence, and what to do
    report     what people read, and the object that programs read

A fact that a system does not tell is None, and what follows from it is left out.
"""
