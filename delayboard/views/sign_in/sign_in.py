"""Signing in and out: by password, by the company's provider, by a link of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allauth.account.internal.flows.login import perform_password_login
from allauth.account.models import Login
from allauth.mfa.adapter import get_adapter
from allauth.mfa.webauthn.views import RemoveWebAuthnView, login_webauthn
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import BACKEND_SESSION_KEY
from django.contrib.auth import views as accounts
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from delayboard.sign_in import remote_user
from delayboard.sign_in.accounts import refuse
from delayboard.sign_in.link import InvalidLink, read_link
from delayboard.sign_in.provider import ID_TOKEN, CompanyProvider, ProviderError, sign_out_address
from delayboard.sign_in.throttle import CHECKING
from topology import audit


class GuardedForm(AuthenticationForm):
    """Guesses at once are checked one after another."""

    def clean(self) -> dict[str, Any]:
        with CHECKING:
            return super().clean()


class SignInView(accounts.LoginView):
    """Django's page; django-allauth asks for the second factor and begins the session."""

    authentication_form = GuardedForm
    extra_context: Mapping[str, Any]

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        shown = {
            "provider": settings.OIDC_NAME if settings.OIDC_ISSUER else "",
            "is_local": not settings.HIDE_LOCAL_SIGN_IN,
        }
        return super().get_context_data(**kwargs) | shown

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if settings.HIDE_LOCAL_SIGN_IN:
            return refuse(request, "Passwords are switched off. Use the sign-in of your company.")
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        user = form.get_user()
        login = Login(user=user, redirect_url=self.get_success_url())
        answer: HttpResponse = perform_password_login(
            self.request, {"username": user.get_username()}, login
        )
        return answer


class SignOutView(accounts.LogoutView):
    """Ends the session here, and then that of the provider or the proxy."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        token = request.session.get(ID_TOKEN, "")
        is_by_proxy = request.session.get(BACKEND_SESSION_KEY) == remote_user.BACKEND
        response = super().post(request, *args, **kwargs)
        address, name = "", settings.OIDC_NAME
        if token:
            try:
                return_to = request.build_absolute_uri(reverse("login"))
                address = sign_out_address(request, token, return_to)
            except ProviderError as error:
                messages.warning(request, f"You are signed out of Delayboard only. {error}")
        elif is_by_proxy:
            address, name = settings.REMOTE_USER_SIGN_OUT_URL, "the proxy"
            if not address:
                return refuse(
                    request,
                    "You are signed out of Delayboard only. The proxy signs you in again with "
                    "the next page, until you sign out there.",
                )
        if not address:
            return response
        # A form may not be redirected to another host by our policy, and a page may lead there.
        return render(request, "registration/signed_out.html", {"address": address, "name": name})


@login_not_required
@never_cache
@require_safe
def provider_sign_in(request: HttpRequest) -> HttpResponseBase:
    """Lead to the provider, with PKCE and a state that only this browser has."""
    return _with_provider(request, OAuth2LoginView)


@login_not_required
@never_cache
@require_safe
def provider_callback(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Receive the provider's answer, and begin the session."""
    return _with_provider(request, OAuth2CallbackView)


def _with_provider(request: HttpRequest, view: Any) -> HttpResponseBase:
    if not settings.OIDC_ISSUER:
        return refuse(request, "No provider is set up. Set OIDC_ISSUER to sign in with one.")
    provider = CompanyProvider(request)
    try:
        # Before django-allauth asks for it, which explains nothing.
        assert provider.openid_config
        response: HttpResponseBase = view.adapter_view(provider)(request)
    except ProviderError as error:
        return refuse(request, str(error))
    if provider.id_token and request.user.is_authenticated:
        request.session[ID_TOKEN] = provider.id_token
    return response


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def passkey_sign_in(request: HttpRequest) -> HttpResponseBase:
    """Sign a local account in by a passkey alone. GET answers what its script needs, in JSON."""
    if settings.HIDE_LOCAL_SIGN_IN:
        return refuse(request, "Passkeys are switched off. Use the sign-in of your company.")
    response: HttpResponseBase = login_webauthn(request)
    return response


class PasskeyRemoveView(RemoveWebAuthnView):  # type: ignore[misc]
    """Removes a passkey, but not the last factor of a role that must have one."""

    def form_valid(self, form: Any) -> HttpResponse:
        adapter = get_adapter()
        if not adapter.can_delete_authenticator(self.get_object()):
            messages.error(self.request, adapter.error_messages["cannot_delete_authenticator"])
            return redirect("mfa_list_webauthn")
        answer: HttpResponse = super().form_valid(form)
        return answer


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in_link(request: HttpRequest) -> HttpResponseBase:
    """Sign in by the link of `manage.py sign_in_link`, once, after one click."""
    try:
        user = read_link(request.GET.get("token", ""))
    except InvalidLink as error:
        return refuse(request, str(error))
    if request.method != "POST":
        return render(request, "registration/link.html", {"account": user})
    if request.user.is_authenticated:
        return redirect("now")
    audit.record(user, "sign-in link used", what=user.get_username())
    user.backend = settings.AUTHENTICATION_BACKENDS[1]
    login = Login(user=user, redirect_url=reverse("now"))
    answer: HttpResponse = perform_password_login(request, {"username": user.get_username()}, login)
    return answer
