"""HTML page of the arena of plans over time, and of their predicted times as a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuexec.ir.arena_drawing import draw_arena
from gpuexec.ir.plan import Plan, list_lifetimes
from gpuexec.ir.roofline import RooflinePoint, draw_roofline
from gpuexec.planner.prediction import PlanPrediction
from gpuexec.system.html import Markup, make_page, make_paragraph, make_section


def draw_memory(
    title: str,
    plans: Sequence[Plan],
    made_by: Mapping[str, Sequence[str]],
    predictions: Sequence[PlanPrediction] = (),
) -> str:
    """Return an HTML page, well-formed as XML too, with a drawing of each plan's arena: commands by bytes.

    Args:
        title: Name of the model.
        plans: The plans, in order.
        made_by: Nodes by the values that they make.
        predictions: A prediction for each plan, drawn as a roofline below its arena; empty: there are none.
    """
    parts = [
        make_paragraph(
            "Time goes to the right, a command at a time; bytes of the arena go up. A rectangle is a buffer, from the"
            " first command that uses it to the last."
        )
    ]
    for number, plan in enumerate(plans, 1):
        parts.append(_draw_part(number, len(plans), plan, made_by))
        parts += [_draw_prediction(each) for each in predictions[number - 1 : number]]
    return make_page(f"Memory of {title}", *parts)


def _draw_part(number: int, count: int, plan: Plan, made_by: Mapping[str, Sequence[str]]) -> Markup:
    layout, commands = plan.layout, len(plan.segment.commands)
    part = f"Part {number} of {count}: " if count > 1 else ""
    arena = draw_arena(list_lifetimes(plan, made_by), commands, layout.nbytes, layout.lower_bound)
    return make_section(f"{part}{commands} commands for {plan.target}", arena)


def _draw_prediction(prediction: PlanPrediction) -> Markup:
    points = [
        RooflinePoint(
            f"{row.origin}: {row.kernel}, {row.predicted_us:,.1f} us, bound by {row.bound_by}, {row.blocks} blocks,"
            f" {row.flops:,} operations, {row.nbytes:,} bytes",
            row.flops,
            row.nbytes,
            row.predicted_us,
            row.bound_by,
            bool(row.bounds.tensor),
        )
        for row in prediction.commands
    ]
    return make_section(
        f"Predicted: {prediction.predicted_us:,.0f} us on {prediction.gpu.name}",
        make_paragraph(
            f"{prediction.launches} launches, at least {prediction.floor_us:,.0f} us; {prediction.moved_nbytes:,} bytes"
            f" moved of at least {prediction.minimum_nbytes:,}. A circle is a command, its area the time it takes; the"
            " line is what the GPU could do at best."
        ),
        draw_roofline(points, prediction.gpu, sum(row.predicted_us for row in prediction.commands)),
    )
