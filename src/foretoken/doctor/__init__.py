"""`foretoken doctor`: what runs on this machine, how fast it can be, and how to remove what slows it down.

    facts      the facts about a machine: plain values
    gather     collects all facts; importing engine or speed imports PyTorch, so gather does that last
    machine    processor, cores, memory and busy processes, from psutil, /sys and control groups
    engine     the native module and its instruction sets, threads, optional packages
    speed      the speed of memory and of the disk that holds models; huge pages
    fits       which models fit into memory, in which format, and the speed that memory allows them
    findings   judges the facts without looking at the machine: a status, a sentence and advice
    report     the report for people, and the object for programs

A fact that the system does not provide is None, and what depends on that fact is left out.
"""
