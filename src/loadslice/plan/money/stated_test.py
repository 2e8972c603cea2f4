from loadslice.plan.money.stated import stated
from loadslice.spec.offers import Box, Offer, Offers
from loadslice.spec.prices import Part, Prices

OFFERS = Offers(
    version=1,
    boxes={"server": Box(cores=8, cards=2, price_purchase=5000.0, source="the shop")},
    engines={
        "cpu": Offer(kind="cpu", box="server", cores=8, price_purchase=0.0),
        "fast": Offer(kind="gpu", box="server", cards=1, device="nvidia-l4", price_purchase=2500.0),
        "other": Offer(kind="gpu", box="server", cards=1),
    },
)


def test_every_price_says_how_it_is_known_and_who_said_so() -> None:
    quote = Part(purchase=2500.0, basis="quote", source="a reseller, 12 November 2026", price_spread=0.05)
    prices = Prices(currency="EUR", parts={"nvidia-l4": quote, "server": Part(owned=2)})
    told = {one.part: one.told("EUR") for one in stated(OFFERS, prices)}
    assert told == {
        "server": "server: 5,000 EUR, 2 there already (stated, within 25%): the shop",
        "cpu": "cpu: 0 EUR (stated, within 25%): no source is named",
        "fast": "fast: 2,500 EUR (quote, within 5%): a reseller, 12 November 2026",
        "other": "other: no price is known",
    }
    assert stated(OFFERS, None)[0].owned == 0
