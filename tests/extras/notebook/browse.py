"""Opens a notebook in Chromium as a user does, runs a cell, prints its output and takes a picture of the page.

python browse.py ADDRESS CELL PICTURE
"""

import shutil
import sys

from playwright.sync_api import sync_playwright

MILLISECONDS = 120_000  # for a page to come, or a cell to end

address, cell, picture = sys.argv[1:]
with sync_playwright() as playwright:
    # --no-sandbox: the tests run as root, for which Chromium has none.
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1000, "height": 560})
    page.set_default_timeout(MILLISECONDS)
    page.goto(address)
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    editor = page.locator(".jp-Notebook .cm-content").first
    editor.click()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for()
    page.get_by_role("button", name="No", exact=True).click()  # to the question whether to fetch Jupyter's news
    editor.fill(cell)  # not page.keyboard, whose keys go to whatever has the focus
    prompt = page.locator(".jp-InputPrompt").first
    for _ in range(MILLISECONDS // 1000):
        # JupyterLab drops a cell that is run while it connects to the kernel, although it calls the kernel idle (4.6).
        editor.press("Shift+Enter")
        page.wait_for_timeout(1000)
        if prompt.inner_text() != "[ ]:":
            break
    page.locator(".jp-OutputArea-output", has_text="the sum of all ranks").first.wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for()
    print(page.locator(".jp-OutputArea-output").first.inner_text())
    page.screenshot(path=picture)
    browser.close()
