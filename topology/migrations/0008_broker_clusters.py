from django.db import migrations, models


def join_addresses(apps, schema_editor):
    for broker in apps.get_model("topology", "Broker").objects.all():
        host = f"[{broker.host}]" if ":" in broker.host else broker.host
        broker.amqp_addresses = f"{host}:{broker.port}"
        broker.save(update_fields=["amqp_addresses"])


def take_first_address(apps, schema_editor):
    for broker in apps.get_model("topology", "Broker").objects.all():
        host, _, port = broker.amqp_addresses.split(", ")[0].rpartition(":")
        broker.host, broker.port = host.strip("[]"), int(port)
        broker.management_urls = broker.management_urls.split(", ")[0]
        broker.save(update_fields=["host", "port", "management_urls"])


class Migration(migrations.Migration):
    dependencies = [("topology", "0007_read_only")]

    operations = [
        migrations.RenameField("broker", "management_url", "management_urls"),
        migrations.AddField(
            "broker", "amqp_addresses", models.CharField(max_length=2000, default="")
        ),
        migrations.RunPython(join_addresses, take_first_address),
        migrations.AlterField("broker", "amqp_addresses", models.CharField(max_length=2000)),
        # With a default the field can be made again.
        migrations.AlterField("broker", "host", models.CharField(max_length=255, default="")),
        migrations.RemoveField("broker", "host"),
        migrations.RemoveField("broker", "port"),
        migrations.AlterField("broker", "management_urls", models.CharField(max_length=4000)),
        migrations.AddField(
            "broker", "server_name", models.CharField(max_length=255, blank=True, default="")
        ),
        migrations.AddField(
            "broker",
            "sign_in",
            models.CharField(
                max_length=12,
                choices=[
                    ("password", "User and password"),
                    ("certificate", "Client certificate (EXTERNAL)"),
                    ("token", "OAuth 2 token"),
                ],
                default="password",
            ),
        ),
        migrations.AddField(
            "broker", "client_certificate", models.TextField(blank=True, default="")
        ),
        migrations.AddField(
            "broker", "sealed_client_key", models.TextField(blank=True, editable=False, default="")
        ),
        migrations.AddField(
            "broker", "token_url", models.CharField(max_length=500, blank=True, default="")
        ),
        migrations.AddField(
            "broker", "token_scope", models.CharField(max_length=500, blank=True, default="")
        ),
        migrations.AddField("broker", "silent", models.JSONField(default=dict, editable=False)),
    ]
