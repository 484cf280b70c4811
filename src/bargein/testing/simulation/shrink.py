"""Shrinks a failing plan: fewer users, steps, lives and faults, and a milder temper."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from bargein.testing.simulation.plan import LifePlan, Plan, SendMessage, Step, Temper

T = TypeVar("T")
_change = msgspec.structs.replace


def shrink(plan: Plan, still_fails: Callable[[Plan], bool], tries_max: int = 2000) -> Plan:
    """Tries every smaller plan in turn, and continues from the first that fails the same way."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            tries += 1
            if tries > tries_max:
                return plan
            if still_fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for users in _without_one(plan.users):
        yield _change(plan, users=users)
    for lives in _without_one(plan.lives):
        yield _change(plan, lives=lives)
    for users in _with_one_smaller(plan.users, _without_one):
        yield _change(plan, users=users)
    for lives in _with_one_smaller(plan.lives, _milder_lives):
        yield _change(plan, lives=lives)
    for temper in _milder_tempers(plan.temper):
        yield _change(plan, temper=temper)
    if plan.sessions > 1:
        users = tuple(tuple(_change(step, session=0) for step in user) for user in plan.users)
        yield _change(plan, users=users, sessions=1)
    for users in _with_one_smaller(plan.users, _plainer_users):
        yield _change(plan, users=users)


def _without_one(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    for place in range(len(items)):
        yield items[:place] + items[place + 1 :]


def _with_one_smaller(
    items: tuple[T, ...], smaller: Callable[[T], Iterator[T]]
) -> Iterator[tuple[T, ...]]:
    for place, item in enumerate(items):
        for candidate in smaller(item):
            yield (*items[:place], candidate, *items[place + 1 :])


def _milder_lives(life: LifePlan) -> Iterator[LifePlan]:
    for faults in _without_one(life.faults):
        yield _change(life, faults=faults)


def _milder_tempers(temper: Temper) -> Iterator[Temper]:
    mild = Temper()
    for name in Temper.__struct_fields__:
        if name != "tools" and getattr(temper, name) != getattr(mild, name):
            yield _change(temper, **{name: getattr(mild, name)})
    if len(temper.tools) > 1:
        for tools in _without_one(temper.tools):
            yield _change(temper, tools=tools)


def _plainer_users(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    yield from _with_one_smaller(steps, _plainer_steps)


def _plainer_steps(step: Step) -> Iterator[Step]:
    if step.gives_up_s is not None:
        yield _change(step, gives_up_s=None)
    if not step.alone:
        yield _change(step, alone=True)
    if step.after_s:
        yield _change(step, after_s=0.0)
    action = step.action
    if isinstance(action, SendMessage):
        plain = SendMessage(action.mode)
        for name in SendMessage.__struct_fields__:
            if getattr(action, name) != getattr(plain, name):
                yield _change(step, action=_change(action, **{name: getattr(plain, name)}))
