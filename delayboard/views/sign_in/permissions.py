"""What a person may do and why not, by broker; the read-only switch of the site."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from delayboard.sign_in.permissions import explain, explain_site
from delayboard.sign_in.second_factor import has_factor, is_required, reset
from topology import access, audit
from topology.models import Role, SiteSwitch
from topology.models.read_only import READ_ONLY, site_reason

MOST_NAMES = 500


@require_safe
def permissions(request: HttpRequest) -> HttpResponse:
    """The page of one's own permissions; of those of `user` for admins of every broker."""
    is_admin = access.may(request.user, None, Role.ADMIN)
    person = get_object_or_404(User, pk=request.user.pk)
    if (name := request.GET.get("user", "")) and name != person.get_username():
        access.require(request.user, None, Role.ADMIN)
        person = get_object_or_404(User, username=name)
    brokers = list(access.visible_brokers(request.user))
    context = {
        "person": person,
        "is_self": person.pk == request.user.pk,
        "is_admin": is_admin,
        "names": User.objects.order_by("username").values_list("username", flat=True)[:MOST_NAMES]
        if is_admin
        else [],
        "lines": explain(person, brokers),
        "site_lines": explain_site(person),
        "is_local": person.has_usable_password(),
        "has_factor": has_factor(person),
        "needs_factor": is_required(person),
        "site_reason": site_reason(),
        "is_fixed": settings.READ_ONLY,
    }
    return render(request, "registration/permissions.html", context)


@require_POST
@access.everywhere(Role.ADMIN)
def read_only_switch(request: HttpRequest) -> HttpResponse:
    """Set the whole site to read-only (`switch` is on), or end that."""
    if request.POST.get("switch") == "on":
        with audit.recorded(request.user, "read-only enabled"):
            SiteSwitch.objects.update_or_create(
                name=READ_ONLY, defaults={"username": request.user.get_username()}
            )
        messages.success(request, "Delayboard is read-only. It changes no broker until you end it.")
    else:
        with audit.recorded(request.user, "read-only disabled"):
            SiteSwitch.objects.filter(name=READ_ONLY).delete()
        messages.success(request, "Read-only has ended. Paused work goes on within seconds.")
    return redirect("permissions")


@require_POST
@access.everywhere(Role.ADMIN)
def second_factor_reset(request: HttpRequest) -> HttpResponse:
    """Delete the second factors of `user`, who lost them."""
    person = get_object_or_404(User, username=request.POST.get("user", ""))
    if person.pk == request.user.pk:
        messages.error(
            request,
            "You cannot reset your own second factor. Remove it under Second factor, or ask "
            "another administrator.",
        )
    elif person.is_superuser and not request.user.is_superuser:
        messages.error(request, "Only a superuser can reset the second factor of a superuser.")
    else:
        reset(request.user, person)
        messages.success(request, f"The second factors of {person.get_username()} are deleted.")
    query = urlencode({"user": person.get_username()})
    return redirect(f"{reverse('permissions')}?{query}")
