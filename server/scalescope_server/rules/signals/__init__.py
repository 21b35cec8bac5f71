"""What a rule's tree becomes: signals, each worked out once per update, however many rules ask for it.

``signal`` says what they have in common, ``told`` are the leaves, ``pointwise`` what is worked out of an update alone,
``windowed`` what is of a window, ``conditions`` what is true or false, ``each`` what has one value per layer, module
or rank, ``across`` what makes one of those. ``compiling`` builds them.
"""
