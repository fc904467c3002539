"""The admin page: sessions in a browser, live views of one tenant and of the cluster."""
