"""Groups: one with its counts; the list is the API's own."""

from __future__ import annotations

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.refusals import NOT_FOUND
from codeq_cluster.api.routes.groups import GroupView, group_view
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.core.groups import GROUP_NAME
from codeq_cluster.ui.sources import Sources


async def look(call: Call, _: Sources) -> GroupView:
    """Return the group that the query names."""
    group_id = call.query_text("id")
    if not GROUP_NAME.fullmatch(group_id):
        raise NOT_FOUND
    found = await call.services.broker.groups.get(caller(call), group_id)
    if found is None:
        raise NOT_FOUND
    return group_view(found)
