// Takes the picture of the dashboard in the README, of the real service under a made-up load, with
// what scripts/install-face and a release build have left under target/:
//
//   node crates/tollway-server/dashboard/e2e/picture.mjs docs/img/dashboard.png

import { isLive, launch, open } from "./browser.mjs";
import { Service } from "./service.mjs";

const SECONDS = Number(process.env.TOLLWAY_PICTURE_SECONDS ?? 60);
const RULES = `
[lists]
banned = ["198.51.100.66"]
[[policies]]
name = "api"
quota = "400/1s burst 800"
[[policies]]
name = "login"
algorithm = "sliding-window"
quota = "5/10m"
[[policies]]
name = "search"
quota = "20/1s"
shadow = true
[[policies]]
name = "uploads"
quota = "50/1s burst 100"
`;

const file = process.argv[2] ?? "dashboard.png";
const token = "for-the-picture";
const service = await Service.start(RULES, { TOLLWAY_TOKEN: token });
const browser = await launch();
try {
  const { page } = await open(browser, service, { width: 1280, height: 1010, token });
  await isLive(page);
  const begin = Date.now();
  // A quiet day with two visits by somebody who asks far too much.
  for (let step = 0; Date.now() - begin < SECONDS * 1_000; step++) {
    const at = (Date.now() - begin) / (SECONDS * 1_000);
    const isRude = (at > 0.3 && at < 0.45) || at > 0.85;
    const wave = 1 + Math.sin(at * 20) * 0.4;
    for (let tenant = 0; tenant < 8; tenant++) await service.check("api", `tenant-${tenant}`, Math.ceil((6 + tenant * 3) * wave), token);
    if (isRude) await service.check("api", "crawler.example", 160, token);
    if (step % 5 === 0) await service.check("api", "198.51.100.66", 2, token);
    await service.check("uploads", `tenant-${step % 5}`, Math.ceil(9 * wave), token);
    await service.check("search", "tenant-3", 4, token);
    if (step % 4 === 0) await service.check("login", `203.0.113.${step % 9}`, 1, token);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  await page.screenshot({ path: file });
} finally {
  await browser.close();
  await service.dispose();
}
